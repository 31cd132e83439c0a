"""Several sites train one head, and no record leaves its site. To be read in this order: `plan`, `masks`, `messages`,
`site`, `coordinator`.

Each site adds the whole noise of its own claim, so its ε holds whoever the others are. With masks a smaller ε holds,
too, while few of the others collude. A site answers the queries of one agreed plan, with its own curator, ledger and
caps. The coordinator runs the method on weighted sums of answers.
"""
