"""What is handed over with a head: a report for whoever must file it, and its page on the Hugging Face hub.

`contents` puts a report together, and `write` writes it as HTML, Markdown or PDF. `push` sends a head to the hub, with
its shared report as the model card.

**Who may read it.** There are three kinds of documents.

- A *shared* one is for whoever gets the head. It is a function of the head's file, and of figures that were released
  with noise, if there are any. So it says nothing of the records that the head does not say. This is the default.
- One for an *auditor* also has what `holder` adds of the ledger: all trainings, who did them and why, other feature
  sets that share records, and the caps.
- An *internal* one is for whoever holds the records. It also has exact figures on the test split.

A document says at its top, and on each printed page, for whom it is. Sections that are not for everybody are marked.

The digest of the source's listing is in neither of them.

The same input gives the same bytes. No date of today is in a report: its dates are those of the card and the ledger.
"""
