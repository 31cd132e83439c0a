"""`push`: a head on the Hugging Face hub, with its signature and its shared report. Nothing else is sent."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dpfc_cli.errors import UserError, missing, parameter, quoted, sentence
from dpfc_cli.extensions.publish.contents import document
from dpfc_cli.extensions.publish.request import Pushing, Reporting
from dpfc_cli.heads import signature
from dpfc_cli.heads.head import SUFFIXES, copied, located
from dpfc_cli.heads.hub import PREFIX, STEM
from dpfc_cli.heads.signature import SUFFIX
from dpfc_cli.options import takes
from dpfc_cli.show.markdown import markdown
from dpfc_cli.verification import vouched

README = "README.md"
_REPOSITORY = re.compile(r"hf:([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)", re.ASCII)
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What was sent, or would be.

    Attributes:
        repository: `owner/name`.
        files: the bytes of each file by its name there.
        replaced: files of an earlier head that were removed there.
        commit: the revision, 40 hexadecimal digits; None if nothing was sent.
        name: what `Head.load` takes: `hf:OWNER/NAME/FILE@COMMIT`; without the commit if nothing was sent.

    """

    repository: str
    files: Mapping[str, bytes]
    replaced: tuple[str, ...]
    commit: str | None
    name: str


@takes(Pushing)
def push(wanted: Pushing) -> Pushed:
    """Send a head to the Hugging Face hub, with its signature if it has one, and with its shared report as model card.

    A new repository is private: open it on its page. In a repository that exists, the head and README.md are replaced;
    earlier commits stay. A signature is not sent without `public_key`. huggingface_hub finds the token (`hf auth
    login`, HF_TOKEN).

    Returns:
        What was sent, and its revision.

    Raises:
        UserError: the head contradicts itself or the ledger here, a value makes no sense, the figures were not released
            or are of another head, the signature is not of this head or nothing says whose it is, or the hub refuses or
            cannot be reached.

    Examples:
        >>> push("heads/eps1.safetensors", "hf:owner/flu").name

    """
    repository, license = wanted.repository, wanted.license
    found = _REPOSITORY.fullmatch(repository)
    if found is None:
        raise UserError(f"'{repository}' does not name a repository.", "Write hf:OWNER/NAME.", parameter="repository")
    if license is not None and not _LICENSE.fullmatch(license):
        raise UserError(
            f"{parameter('license')} '{license}' is not the identifier of a licence.",
            "Give one as the hub lists them, such as apache-2.0 or cc-by-4.0.",
        )
    path = located(wanted.head)
    loaded = vouched(path)
    name = STEM + SUFFIXES[loaded.card.claim]
    place = f"{PREFIX}{found[1]}/{name}"
    with copied(path) as copy:
        files = {name: copy.read_bytes()}
        signed = signature.check(copy, path, signature.Signer(public_key=wanted.public_key))
    if signed is not None:
        files[name + SUFFIX] = signed.path.read_bytes()
    elif signature.beside(path).exists():
        raise missing(
            f"{quoted(path)} has a signature, and nothing says whose it is. It may be of an earlier head of this name.",
            f"Name the public key, and it is checked before it is sent: {parameter('public_key')}. Or remove "
            f"'{path.name}{SUFFIX}'.",
        )
    card = document(loaded, Reporting(path, evaluation=wanted.evaluation), signed, f"{PREFIX}{found[1]}", license)
    files[README] = markdown(card).encode()
    if wanted.dry_run:
        return Pushed(repository=found[1], files=files, replaced=(), commit=None, name=place)
    commit, replaced = _send(found[1], files)
    return Pushed(repository=found[1], files=files, replaced=replaced, commit=commit, name=f"{place}@{commit}")


def _send(repository: str, files: Mapping[str, bytes]) -> tuple[str, tuple[str, ...]]:
    """Send files in one commit, and remove those of an earlier head: (commit, what was removed)."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub import errors as hub

    own = {STEM + suffix + end for suffix in SUFFIXES.values() for end in ("", SUFFIX)}
    try:
        api = HfApi(library_name="dpfc")
        try:
            # Unlike the other calls, this one does not try again for half a minute where there is no network.
            found = api.model_info(repository)
            known, parent = {each.rfilename for each in found.siblings or ()}, found.sha
        except hub.RepositoryNotFoundError:
            api.create_repo(repository, private=True)
            known, parent = set(), None
        stale = tuple(sorted((own & known) - set(files)))
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(name, data) for name, data in files.items()
        ]
        operations += [CommitOperationDelete(name) for name in stale]
        made = api.create_commit(repository, operations, commit_message="A head by dpfc", parent_commit=parent)
    except Exception as error:  # Which exceptions the network raises changes with the versions of the library.
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        problem = (sentence(error).splitlines()[0].rstrip(".")) or type(error).__name__
        denied = status in (401, 403) or isinstance(error, hub.LocalTokenNotFoundError)
        remedy = (
            "Log in with a token that may write there: hf auth login." if denied else "Check the network and retry."
        )
        raise UserError(
            f"The head cannot be sent to '{repository}': {problem}.",
            remedy,
            code="unwritable" if denied else "unreachable",
            parameter="repository",
        ) from error
    return str(made.oid), stale
