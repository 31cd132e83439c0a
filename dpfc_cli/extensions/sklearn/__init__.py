"""A classifier for scikit-learn that trains with differential privacy."""
