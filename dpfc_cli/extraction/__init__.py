"""How a feature set is made: of pictures (`extract`), and of features from elsewhere (`importing`)."""
