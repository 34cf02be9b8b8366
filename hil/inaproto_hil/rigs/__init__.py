"""What tests, benches and demos stand on: real processes on this machine."""
