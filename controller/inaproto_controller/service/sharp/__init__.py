"""Reservations of SHARP resources in UFM, which decide whose hosts may open a SHARP job."""
