"""The audit: attacks on what is claimed, and the lower bound on ε that an attack proves.

A proof can be wrong, and a program can differ from its proof. So the audit plays the attacker that differential privacy
protects against. This attacker knows all records but one, the *canary*. From what was released the attacker guesses
whether the canary took part. How often the guess is right gives a lower bound on ε that does not depend on any proof.
If the bound exceeds the claim, the claim is false.

**The game.** One comparison is a pair of independent runs. One run has the canary. In the other run the record of the
canary is null. A number, the *statistic*, is computed from the answers of each run. The guess is that the larger number
belongs to the run with the canary. If a run is μ-GDP, then by composition (with, without) and (without, with) are a
√2·μ-GDP pair (Dong, Roth and Su 2022, Corollary 3.3). The test has the same error probability e under both orders. So
e ≥ Φ(−√2·μ/2), and

    P(right) ≤ Φ(μ/√2).

A Clopper-Pearson lower bound on P(right) therefore gives a lower bound on μ, and `accounting.epsilon_for` turns this
into a lower bound on ε at δ. This is the method of Nasr et al. 2023 ("Tight auditing of differentially private machine
learning"), with one change. In that paper false positives and false negatives at a threshold play the role that the
order of a pair has here. A pair needs no threshold, so no threshold can be chosen after the fact. One binomial bound at
the whole error probability replaces two bounds at half of it. And a pair detects noise that is the same in every run,
which a threshold may miss. Ties count as wrong.

**Two levels.** *Release level*: the attacker sees every answer, as the theorem in `privacy.curator` allows. All answers
come from the real `Curator`, one release after the other, with the sampler, the lattice and the sums of a training.
Nothing is cached or shortened. The queries are fixed beforehand, so the other records add the same to both runs and
cancel. The best statistic is then the projection on the contributions of the canary, each measured in standard
deviations of its noise. It is normal with variance μ², and its means in the two runs differ by μ². *Whole training*:
the attacker sees the head alone. The statistic is the margin of the canary's class in the scores of the canary. The
bound is then lower than the claim. The difference shows how much of its answers a head hides.

**Worst case.** The canary is clipped, because it is ten times as long as the other records. It lies on an axis where
all other records are zero. The theorem of the curator holds for every θ that a method passes. So θ is moved to where
the contribution of the canary is longest. These `aimed` queries reach the whole sensitivity. Differences between
classes and between steps need contributions that differ. So they are computed from the queries that were `asked` in a
real training.

**Several statistics.** If classes or steps share their noise, a sum does not show it, but a difference does. A fault in
one kind of release can be hidden by the correct noise of the others. So there is a statistic for the sum of all
releases, one for each kind alone, and one for the differences between classes and between steps of each kind. The error
probability is divided over them (Bonferroni): nine tenths go to the sum of all.

At 95 % confidence the bound exceeds a claim that is true and tight in one audit out of 20. An accusation must be rarer.
So `violated` requires that a bound at the error probability `FALSE_ALARM` exceeds the claim.

**Persons.** If the unit is a person, each person has the same number of records, and the canary is a person with copies
of the worst record. Their clipped sum is as long as one record's. If a program clips records and not persons, or counts
a person twice, the canary shows it.

The audit makes its own data. Its result has no noise, so it would have to be paid for if it came from private records.
It is about the mechanism, and worst-case data show more about that. An audit can refute a claim. It can never prove
one. It covers zero-out adjacency, full passes, one canary, and faults that these statistics can detect.
"""
