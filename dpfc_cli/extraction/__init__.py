"""How a feature set is made: of pictures (`extract`), and of features that are there already (`arrays`)."""
