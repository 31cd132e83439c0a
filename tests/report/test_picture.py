"""What is drawn of heads."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.records.claims import Seeded
from dpfc_cli.report.picture import Curves, of_heads
from tests.hostile import a_card


def test_a_line_joins_heads_of_one_method_whose_options_differ_by_the_noise_alone() -> None:
    """Some at the same ε and some not, in any order."""
    at, cards, scores = ((0.0, (1.0, 2.0)), (0.5, (1.0, 4.0))), [], []
    for better, epsilons in at:
        for epsilon in epsilons:
            for seed in (1, 2):
                card = a_card(privacy=Privacy(epsilon=epsilon, seed=seed))
                options = {**card.options, "damping": 1 / epsilon, "raw_matrices": bool(better)}
                worth = Seeded(seed=seed + 2 * bool(better), epsilon=epsilon, delta=1e-5)
                cards.append(replace(card, options=options, seeded=worth))
                scores.append(better + epsilon / 10)
    found: list[Any] = [SimpleNamespace(top1=top1, interval=(0, 1), split="test", n=9) for top1 in scores]
    names: Any = SimpleNamespace(name="set")
    for order in ([*range(8)], [*range(7, -1, -1)], [0, 4, 1, 5, 2, 6, 3, 7]):
        drawn = of_heads([Path(str(i)) for i in order], [cards[i] for i in order], names, [found[i] for i in order]).of
        assert isinstance(drawn, Curves)
        lines = {(*sorted(zip(each.epsilons, each.values, strict=True)),) for each in drawn.series}
        assert lines == {((1.0, 0.1), (2.0, 0.2)), ((1.0, 0.6), (4.0, 0.9))}
        assert len({each.label for each in drawn.series}) == 2
