"""Records without labels make a noisy head better (`methods.unlabelled`): those that are predicted (`predict --adapt`,
in `predictions`), or public ones (`train --unlabelled`, in `trainings`).
"""
