"""What is handed over with a head: a report for whoever must file it, and its page on the Hugging Face hub.

`contents` puts a report together, and `write` writes it as HTML, Markdown or PDF. `push` sends a head to the hub, with
its shared report as the model card.

**Who may read it.** There are two kinds of documents.

- A *shared* one is for whoever gets the head. It is a function of the head's file, and of figures that were released
  with noise, if there are any. So it says nothing of the records that the head does not say. This is the default.
- An *internal* one is for whoever holds the records. It also has what `holder` adds: the ledger with all trainings, who
  did them and why, other feature sets that share records, the caps, and exact figures on the test split. Some of these
  are facts about records, and no noise protects them. The document says so at its top, at each of these sections, and
  on each printed page.

The digest of the source's listing is in neither of them.

The same input gives the same bytes. No date of today is in a report: its dates are those of the card and the ledger.
"""
