"""A head of dpfc as a scikit-learn classifier. It needs NumPy and scikit-learn. It does not need dpfc.

from dpfc_head_sklearn import HeadClassifier

classifier = HeadClassifier.load("head.npz")
names = classifier.predict(x)  # x: n × d features, from the backbone that classifier.card names
"""

import json

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_array


class HeadClassifier(ClassifierMixin, BaseEstimator):
    """A linear classifier that was trained already: `fit` changes nothing.

    Columns are in the sorted order of the labels (`classes_`), because scikit-learn's metrics expect it.
    Probabilities are not calibrated: they are the softmax of the scores; if records have several labels, the logistic
    function of each score.

    Args:
        chain: what is done to a feature vector first: ("clip", norm), ("centre", mean) or ("linear", matrix).
        weight: d × m.
        bias: m.
        classes: the names of the classes, in the order of the columns of `weight`.
        several_labels: whether a record may have several labels.
        card: how the head was made, and what is claimed of it.

    """

    def __init__(self, chain, weight, bias, classes, several_labels=False, card=None):
        self.chain = chain
        self.weight = weight
        self.bias = bias
        self.classes = classes
        self.several_labels = several_labels
        self.card = card

    @classmethod
    def load(cls, path):
        """The classifier in a file that `dpfc export HEAD --to sklearn` (or `--to npz`) wrote."""
        with np.load(path, allow_pickle=False) as file:
            steps, card = json.loads(file["chain"].item()), json.loads(file["card"].item())
            arrays = [file[f"chain.{i}"] for i in range(sum("norm" not in step for step in steps))]
            weight, bias = file["weight"], file["bias"]
        left = iter(arrays)
        chain = [(step["step"], step["norm"] if "norm" in step else next(left)) for step in steps]
        return cls(chain, weight, bias, card["classes"], card["facts"]["k"] > 1, card)

    @property
    def classes_(self):
        """The labels, sorted: the names of the classes, or 0 … m − 1 where these are counted ("0", "1" …)."""
        return self._labels[self._order]

    @property
    def n_features_in_(self):
        """d: the dimensions of the feature vectors."""
        return len(self.weight)

    def __sklearn_is_fitted__(self):
        return True

    def fit(self, X, y=None):
        """Change nothing: the head was trained already."""
        return self

    def decision_function(self, X):
        """The scores, n × m. Of two classes with one label for each record: that of the second minus the first, n."""
        scores = self._scores(X)[:, self._order]
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 and not self.several_labels else scores

    def predict_proba(self, X):
        """Probabilities, n × m. They are not calibrated."""
        scores = self._scores(X)[:, self._order]
        if self.several_labels:
            return np.exp(-np.logaddexp(0, -scores))
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def predict(self, X):
        """The label of the best class for each record, as in `classes_`."""
        return self._labels[self._scores(X).argmax(axis=1)]

    @property
    def _labels(self):
        counted = list(self.classes) == [str(j) for j in range(len(self.classes))]
        return np.array(range(len(self.classes)) if counted else self.classes, dtype=int if counted else object)

    @property
    def _order(self):
        return np.argsort(self._labels)

    def _scores(self, X):
        z = check_array(X, dtype=np.float32).astype(np.float64)
        if z.shape[1] != len(self.weight):
            raise ValueError(f"X has {z.shape[1]} features, but the head takes {len(self.weight)}")
        for step, value in self.chain:
            if step == "clip":
                z = z / value
                z = z / np.maximum(_norms(z), 1)
            elif step == "centre":
                z = z - value
            else:
                z = z.astype(np.float32) @ value.astype(np.float32)
        return z @ self.weight + self.bias


def _norms(z):
    """The norms of rows. dpfc rounds the coordinates to a grid first."""
    step = np.maximum(np.abs(z).max(axis=1, keepdims=True), 1e-290) / 2**18
    return step * np.sqrt((np.rint(z / step) ** 2).sum(axis=1, keepdims=True))
