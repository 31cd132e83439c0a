"""What is claimed of a head that was trained from another private head of the same records.

Such a head depends on the answers of both trainings. Given the first head, the second training is what it is for any
other start, so its own cost is that of its own releases. Both together cost what all their releases cost, because
composition allows each release to depend on the answers before it (Dong, Roth and Su 2022, Theorem 3.2). So the head
claims the guarantee of all these releases. The ledger has a charge for the first head, and is charged for the new
releases alone.

The noise may not depend on the answers. If it was chosen by looking at the first head, the claim is that of a cap which
was fixed before (`training.account`). Only the operator knows this, so the statement says it.
"""

from typing import Any

from dpfc_cli.privacy.accounting import Guarantee
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.trust.claims import epsilon_of


def whole(calibrated: Calibrated) -> tuple[Guarantee | None, list[dict[str, Any]]]:
    """What a head claims, and the releases that it depends on: those of the head that it started from, then its own.

    The guarantee is None where nothing is claimed. Shares are parts of the budget of all releases together.
    """
    own, before, releases = calibrated.claimed, calibrated.before, calibrated.releases
    if own is None or before is None:
        return own, releases
    total = before["mu"] ** 2 + own.mu**2
    made = [
        {**release, "share": release["share"] * mu**2 / total}
        for mu, part in ((before["mu"], before["plan"]), (own.mu, releases))
        for release in part
    ]
    eta = before["eta"] + own.eta
    return Guarantee(epsilon=epsilon_of(made, own.delta, eta), delta=own.delta, mu=total**0.5, eta=eta), made
