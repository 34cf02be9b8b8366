"""The controller daemon: promises, agents, job API."""
