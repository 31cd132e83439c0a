"""Weights that cannot be fetched just like that: the publisher asks for consent, or has nothing but a pickle."""

from dpfc_cli.errors import UserError, parameter


def gated(repository: str, file: str) -> UserError:
    """The error for a file that the hub does not give to this account, or to nobody without one."""
    return UserError(
        f"'{file}' of '{repository}' is gated: its publisher gives it only to accounts that accepted the terms.",
        f"{_accept(repository)} If you did both, the page says whether the publisher still has to agree. Or get the "
        f"file in another way and name it with {parameter('weights')}.",
        code="unreadable",
        parameter="weights",
        repository=repository,
        file=file,
        gated=True,
    )


def only_a_pickle(model: str, place: str, gated: bool) -> UserError:
    """The error for a model whose publisher has nothing but a pickle on the hub.

    Args:
        model: its name.
        place: `owner/name/file`.
        gated: the publisher gives the file only to whom accepted its terms.

    """
    repository, _, file = place.rpartition("/")
    ask = f"{_accept(repository)} Then fetch" if gated else "Fetch"
    return UserError(
        f"The publisher of {model} has its weights as a pickle only ('{file}' of '{repository}'). Whoever opens a "
        "pickle runs the code in it.",
        f"{ask} the file: hf download {repository} {file}. Convert it on a machine where that code "
        "can do no harm: tensors = torch.load(FILE, weights_only=True), then safetensors.torch.save_file(tensors, "
        f"'model.safetensors'). Name the new file with {parameter('weights')}. If the repository has a "
        f"model.safetensors by now, name hf:{repository}.",
        code="unsupported",
        parameter="weights",
        model=model,
        repository=repository,
        file=file,
        gated=gated,
    )


def _accept(repository: str) -> str:
    """What to do to get at a gated repository."""
    from huggingface_hub import constants

    return (
        f"Accept its terms at {constants.ENDPOINT}/{repository}. Then log in with the same account: `hf auth login`, "
        "or set HF_TOKEN."
    )
