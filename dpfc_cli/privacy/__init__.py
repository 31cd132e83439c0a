"""The trusted core: everything that a head could reveal about the private records comes from this package.

A fault here can make the guarantee false. So the code is small, and each proof stands beside the code that it is about.
Read the modules in this order. Each one answers one question:

1. `facts`: what is public about the records, and which data sets are neighbours?
2. `chain`: which preprocessing can one record pass through?
3. `inputs`: what does a query see of one record, and when is a record null?
4. `queries`: which sums can be asked for, and why is the contribution of one record bounded?
5. `outcomes`, `standings`: why is the same true for the counts of a private evaluation?
6. `forms`: which queries are accepted, what does a plan fix of them, and in which pieces are they answered?
7. `lattice`: why does that bound also hold for the numbers that the computer really adds?
8. `oracle`: what does a training method see, and how does it state its plan of releases?
9. `noise`: why is the noise exactly a rounded Gaussian?
10. `accounting`: which ε and δ follow from that noise?
11. `poisson`: which ε and δ follow if a release uses a random sample of the records?
12. `persons`: why is the same true if the unit is a person with several records?
13. `passes`: why is each unit read once, by one process or by several?
14. `directions`: what is kept between two passes?
15. `sums`: how is a sum over all records computed?
16. `parts`: why is the sum of several processes that of one?
17. `curator`: how is the noise added? This is the only place where records and noise meet, and it has the main theorem.
18. `filters`: what do several trainings spend together, if each was chosen by looking at the ones before?

The core trusts NumPy, BLAS, XLA, Python's `decimal`, the random bits of the operating system, and the code that gives
it the records. That code must give it each record once. In this project it is `features`, and through it h5py.
"""
