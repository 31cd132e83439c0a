"""`--hypothesis-profile=torture` tries many damaged and forged files, drawn anew in each run."""

from hypothesis import HealthCheck, settings

settings.register_profile("torture", max_examples=20_000)


def is_long() -> bool:
    """Whether many files are tried."""
    return settings.get_current_profile_name() == "torture"


def some(examples: int) -> settings:
    """Settings for so many examples, which are the same in each run."""
    return settings(
        max_examples=settings().max_examples if is_long() else examples,
        derandomize=not is_long(),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
