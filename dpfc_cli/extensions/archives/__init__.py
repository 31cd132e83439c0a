"""Pictures in archives and official files: WebDataset, CIFAR and MNIST.

`tars` reads tar archives in place. Each of the other modules has entries of the group `dpfc.sources`.
"""
