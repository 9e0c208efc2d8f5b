"""What tests and benches share: servers, faults, kills, damaged and hostile datasets."""
