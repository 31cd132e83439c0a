"""Masks: what each site sends is random by itself, and the sum over all sites is exact.

Each pair of sites has a secret (X25519 of one's private and the other's public key, which the plan has). From it, from
the plan and from the *list* of the charges of all sites both make the same *pad* for each part of each answer (HKDF and
ChaCha20). The first of the two adds it and the second one subtracts it, modulo 2⁶⁴. So all pads cancel in the sum over
all sites, which is that of the integers that the curators have answered. If a site is lost there is no sum.

**What an attacker sees.** Let the coordinator and t of the H sites tell what they know, lie, or add no noise. The pads
among the K = H − t others, who are honest, are unknown to them, and K ≥ 2. So what these K send of a release is, but
for its sum, uniformly random, as long as X25519, HKDF and ChaCha20 are what they should be. Nobody can choose a query
by looking at one part of this sum, and whatever is asked of each site, a unit changes the sum by its sensitivity at
most. The plan's digest is in each pad: another plan, or another set of sites, has other pads.

**No pad hides two answers.** A charge has a random id of 128 bits, and a site is charged once for a plan (`site`). But
a site that is put back from a backup does not know of its charge. It charges again, and draws other noise. So the list
has the ids of all charges, in the order of the plan. The coordinator hands it round before the first answer, and nobody
needs to believe it. An honest site takes a list that has the charge it answers for in its place, one list for a charge,
which is on disk before an answer leaves (`begin`). Call what it answers for a charge its *turn*. There is one answer to
each release in a turn (`ledger.answers`), and one list, so a turn uses each of its pads for one answer, and sends the
same bytes again. Two turns of one site have two ids in its place of the list, so two lists, so other pads. Thus a pad
of two honest sites hides one answer of each, in the two turns that have one list, of which each site has one at most.
Turns of different lists have no pads in common, so look at one list:

- All K honest sites have taken it. This is the case above: K answers, each with its own noise, of which the sum shows.
- One of them has not. Then each of the others has a pad with it that nobody else uses or knows. So all that they send
  is independent and uniformly random, and says nothing, also in sums. This is what comes of a list with a lie in it,
  of two lists, of an old one that is sent again, and of a site that was put back: the others keep to their first list,
  so it is refused or answers into the void. Nobody can know this from what is sent, so no site is asked before all have
  taken the list.

The t who collude choose their own ids, and know no pad of two others. A list that is whole for a second time takes a
second charge of every honest site, with noise of its own: that is another training. What stays out of sight is what
`ledger.answers` cannot see: a disk that is put back as a whole *after* the charge draws a second answer in one turn.

**Theorem.** Let N_1 … N_K be independent, N_i = round(s·Z_i), with Z_i standard normal and s ≥ 1. Let X ~ N(0, K·s²),
and V the sum of K − 1 uniform numbers in [−½, ½], all independent. Then the total variation distance of Σ N_i and
round(X + V) is at most

    Σ_{k=1}^{K−1} Σ_{l≥1} exp(−2π²·s²·l²·k/(k + 1)) ≤ 1.001·(K − 1)·exp(−π²·s²).

Proof by induction. Let M_k = N_1 + … + N_k and Y_k = X_k + V_{k−1}, with X_k ~ N(0, k·s²) and V_{k−1} a sum of k − 1
uniform numbers. M_1 = round(Y_1). M_k is an integer, so M_{k+1} = round(M_k + s·Z). Put round(Y_k) in the place of M_k:
this costs the distance of the step before. Then compare A = round(Y_k) + s·Z with B = Y_k + U + s·Z = Y_{k+1}, where U
is uniform in [−½, ½]. To round both makes no distance larger. P(round(Y_k) = j) is the density of Y_k + U at j. So the
density of B at y is the integral over x of E[φ_a(x − V_k)]·φ_s(y − x) with a² = k·s², and that of A is the sum over the
integers x. For each value of V_k the product is a multiple of a normal density in x, of variance τ² = s²·k/(k + 1). By
Poisson's summation its sum is its integral times 1 ± 2·Σ_l exp(−2π²·τ²·l²). The total variation is half the integral of
the difference. Last, k/(k + 1) ≥ ½. ∎

**The claim.** S + round(X + V) = round(S + X + V) for an integer S. So up to that distance the sum is a post-processing
of S + X: the answer of one curator with √K times the noise of a site. If each site is μ-GDP by itself, then all that is
seen of the others is μ/√K-GDP. A unit at j sites can change the sum j times as much. The distance is paid for in η, as
in `curator`: for each coordinate K·2⁻²⁴⁰ for the sampler, and that of the theorem, which is below 2⁻²⁴⁰. (Each lattice
has 4ᵇ ≥ 2²⁰, and no site's ε exceeds 100, so s > 2¹⁴.) Both together are at most H·2⁻²⁴⁰, so η is H times that of one
site.

**Without trust** each site's own noise is all that counts, as if there were no masks. Its ledger is charged for this.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpfc_cli.errors import check_installed, conflict, quoted, unwritable
from dpfc_cli.files import make, private_folder

PURPOSE = "For a plan of several sites"


def new_key(folder: Path) -> str:
    """Make the private key of an invitation, for its owner alone, in a folder. Returns the public one, in hex.

    UserError where it cannot be written, or `cryptography` is not installed.
    """
    check_installed("cryptography", "federation", PURPOSE)
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw().hex()
    keep(_path(folder, public), private.private_bytes_raw())
    return public


def keep(path: Path, data: bytes) -> bool:
    """Write what a site keeps of an invitation, for its owner alone. False if there is something else, which stays.
    UserError where it cannot be written.
    """
    try:
        private_folder(path.parent)
        return make(path, data, 0o600) != "other"
    except OSError as error:
        raise unwritable(
            f"{quoted(path.parent)} cannot be written: {error.strerror or error}.",
            "A site keeps its invitations beside its ledger. Make that folder writable.",
        ) from error


def point(public: str) -> bytes | None:
    """What two public keys, in hex, have alike if each private key has the same secret with both: the top bit of a key
    counts for nothing, nor does a point of low order that is added to it. None: it is no key, because it is not in its
    one encoding, or all have one secret with it. UserError: `cryptography` is not installed.
    """
    check_installed("cryptography", "federation", PURPOSE)
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    raw = bytes.fromhex(public)
    if int.from_bytes(raw, "little") >= 2**255 - 19:
        return None
    try:
        # The private key is 2²⁵⁴: a multiple of the cofactors, and prime to the other orders.
        return X25519PrivateKey.from_private_bytes(bytes(32)).exchange(X25519PublicKey.from_public_bytes(raw))
    except ValueError:
        return None


def forget(folder: Path, public: str) -> None:
    """Delete a private key. Then nobody can find out later what its masks have hidden."""
    for path in (_path(folder, public), *folder.glob(f"{public}.*.charges")):
        path.unlink(missing_ok=True)


def _path(folder: Path, public: str) -> Path:
    return folder / f"{public}.key"


class Masks:
    """The pads of one site of a plan.

    charges: the list that it has taken; empty before that.
    """

    def __init__(self, keys: Sequence[str], own: int, digest: str, folder: Path) -> None:
        """Make them. UserError: the private key is not there, or a public key is none.

        Args:
            keys: the public keys of all sites of the plan, in its order.
            own: the number of this site.
            digest: of the plan.
            folder: where its private keys are.

        """
        check_installed("cryptography", "federation", PURPOSE)
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

        self._own, self._digest, self.charges = own, bytes.fromhex(digest), b""
        self._kept = folder / f"{keys[own]}.{digest}.charges"
        try:
            private = X25519PrivateKey.from_private_bytes(_path(folder, keys[own]).read_bytes())
            if private.public_key().public_bytes_raw().hex() != keys[own]:
                raise ValueError
            others = {
                i: X25519PublicKey.from_public_bytes(bytes.fromhex(key)) for i, key in enumerate(keys) if i != own
            }
            self._secrets = {i: private.exchange(each) for i, each in others.items()}
        except (OSError, ValueError) as error:
            raise conflict(
                f"The keys of this plan cannot be used here: the private one is not in {quoted(folder)} (a site that "
                "has its head deletes it), or another site has sent one that is none.",
                "An invitation is good for one plan with masks. Ask for new ones, or serve where it was made.",
            ) from error

    def begin(self, charge: bytes, charges: bytes) -> bool:
        """Take the list of the charges. False if it has another one than `charge` for this site, or it is not the one
        that was taken before. UserError where it cannot be kept.

        charge: the id of what this site answers for. charges: those of all sites, in the order of the plan.
        """
        at, size = self._own * len(charge), len(charge) * (1 + len(self._secrets))
        if len(charges) != size or charges[at : at + len(charge)] != charge or not keep(self._kept, charges):
            return False
        self.charges = charges
        return True

    def masked(self, answer: np.ndarray, number: int, part: int) -> np.ndarray:
        """An answer, or a part of one, with the pads of all other sites. It always is the same for one list.

        Args:
            answer: integers, int64 in the bytes of float64.
            number: of the release.
            part: of the answer.

        """
        assert self.charges
        total = answer.view(np.uint64).copy()
        for other, secret in self._secrets.items():
            first, second = sorted((self._own, other))
            pad = self._pad(secret, f"{first} {second} {number} {part}", total.size)
            pad = pad.reshape(total.shape)
            total += pad if self._own == first else -pad
        return total.view(np.float64)

    def _pad(self, secret: bytes, info: str, count: int) -> np.ndarray:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        # Each key makes one pad, so its nonce may be zero. Those who collude choose some of the charges: no salt.
        key = HKDF(SHA256(), 32, salt=self._digest, info=self.charges + info.encode()).derive(secret)
        stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * count))
        return np.frombuffer(stream, "<u8").astype(np.uint64)
