"""The ledger: what was spent on the people whose records lie in a folder of feature sets.

There is one file for a folder, `ledger.sqlite`. It has facts, and facts are only added. What was spent is one sum over
them. **Unless two sets are declared to be of different people, what was spent on both is added**: an undeclared set
counts for everybody.

Read in this order: `facts` says what can stand in a ledger, `totals` what the facts say together, `caps` what may be
spent and why that is a guarantee, `file` how facts get on disk, `populations` who is in which set, `merge` how two
ledgers become one, and `answers` how a training is resumed. The room knows nothing of methods, heads and command lines.
"""
