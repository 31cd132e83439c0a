"""Pictures in archives and official files: WebDataset, folders of Hugging Face datasets, CIFAR, MNIST and ImageNet.

`tars` reads tar archives in place. Each of the other modules has entries of the group `dpfc.sources`.
"""
