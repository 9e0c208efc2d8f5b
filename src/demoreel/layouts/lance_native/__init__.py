"""lance-native: the Lance layout that lerobot reads itself."""
