"""The audit: attacks on what is claimed, and the lower bound on ε that an attack proves.

A proof can be wrong, and a program can differ from its proof. So the audit plays the attacker that differential privacy
protects against. This attacker knows all units (records, or persons) but one, the *canary*. From what was released the
attacker guesses which of two neighbouring data sets was used. How often the guess is right gives a lower bound on ε
that does not depend on any proof of the program. If the bound exceeds the claim, the claim is false.

The modules: `canary` (the data sets), `attacks` (the queries and the statistics), `signals` (what an attacker can gain
at most), `game` (the bounds) and `audit` (the runs, by the real curator).

**The game.** One comparison is a pair of independent runs, one on each of two neighbouring data sets. Under zero-out
adjacency the canary is a worst-case record in one of them, and null in the other. Under replace-one adjacency it is one
worst-case record or another one. A number, the *statistic*, is computed from the answers of each run. The guess is that
the larger number belongs to the first data set. If a run is μ-GDP, then by composition (first, second) and (second,
first) are a √2·μ-GDP pair (Dong, Roth and Su 2022, Corollary 3.3). The test has the same error probability e under both
orders. So e ≥ Φ(−√2·μ/2), and

    P(right) ≤ Φ(μ/√2).

A Clopper-Pearson lower bound on P(right) therefore gives a lower bound on μ, and `accounting.epsilon_for` turns this
into a lower bound on ε at δ. This is the method of Nasr et al. 2023 ("Tight auditing of differentially private machine
learning"), with one change. In that paper false positives and false negatives at a threshold play the role that the
order of a pair has here. A pair needs no threshold, so no threshold can be chosen after the fact. One binomial bound at
the whole error probability replaces two bounds at half of it. And a pair detects noise that is the same in every run,
which a threshold may miss. Ties count as wrong.

**Poisson samples.** Their privacy is not Gaussian. `signals` computes the largest P(right) for given rates and noise
multipliers, with a proof. The bound is then on the noise: it says how small the noise must be at least, at the claimed
rates, to explain the right guesses. `privacy.poisson` says which ε a training with that noise would state. Nasr et al.
bound such trainings in the same way, by the trade-off function of the sampled mechanism. (For (ε, δ)-privacy alone,
P(right) ≤ 1 − (1 − δ)²·(1 − tanh(ε/2))/2, by the composition theorem of Kairouz, Oh and Viswanath 2015. At ε = 1 this
would allow 73 % right guesses, and the best attack on a sampled training makes 51 to 57 %. So that bound could never
come near a claim.)

**Two levels.** *Release level*: the attacker sees every answer, as the theorem in `privacy.curator` allows. All answers
come from the real `Curator`, one release after the other, with the sampler, the lattice and the sums of a training.
Nothing is cached or shortened. The queries are fixed beforehand, so the other records add the same to both runs and
cancel. The best statistic is then the logarithm of the likelihood ratio. On full passes it is the projection on the
difference between the two contributions, measured in standard deviations of the noise. It is normal with variance μ²,
and its means in the two runs differ by μ². *Whole training*: the attacker sees the head alone. The statistic is the
margin of the canary's classes in the scores of the canary (under replace-one: minus that of the other canary). The
bound is then lower than the claim. The difference shows how much of its answers a head hides.

**Worst case.** The canary is clipped, because it is ten times as long as the other records. It lies on an axis where
all other records are zero. It has as many labels as records may have. The theorem of the curator holds for every θ that
a method passes. So θ is moved to where the contributions differ most. These `aimed` queries reach the whole
sensitivity. Differences between classes and between steps need contributions that differ. So they are computed from the
queries that were `asked` in a real training. On Poisson samples the other records are null: that they take part or not
would only add noise.

**Replace-one adjacency.** The noise is that of sensitivity 2 for sums and √2 for Grams. Opposite contributions are the
worst case of sums, and add the same to Grams. Orthogonal ones are the worst case of Grams, and give sums √2 of their 2.
So no pair of canaries reaches the claim of a method that releases both. `attacks` looks for the pair that reaches most
of all releases together, and for the best pairs for each kind alone. What an attack would reach with infinitely many
runs is computed and stated as *attainable*: a bound should be compared with it.

**Several statistics.** If classes or steps share their noise, a sum does not show it, but a difference does. A fault in
one kind of release can be hidden by the correct noise of the others. So there is a statistic for all releases, one for
each kind alone, and one for the differences between classes, steps and blocks of each kind. Each is compared with the
noise that the plan gives the releases that it sees: by the theorem of the curator, these alone are μ-GDP with
μ² = Σ 1/σ² over them. The error probability is divided over the statistics (Bonferroni): nine tenths go to all
releases.

At 95 % confidence the bound exceeds a claim that is true and tight in one audit out of 20. An accusation must be rarer.
So `violated` requires that a bound at the error probability `FALSE_ALARM` exceeds the claim.

**Persons.** If the unit is a person, each person has the same number of records, and the canary is a person with copies
of the worst record. Their clipped sum is as long as one record's. If a program clips records and not persons, or counts
a person twice, the canary shows it.

The audit makes its own data. Its result has no noise, so it would have to be paid for if it came from private records.
It is about the mechanism, and worst-case data show more about that. An audit can refute a claim. It can never prove
one. It covers one canary, and faults that these statistics can detect. One that they cannot: if units take part in all
releases of a training together or not at all, typical runs show less than they should. What rare runs then show more
would take many thousands of runs to see.
"""
