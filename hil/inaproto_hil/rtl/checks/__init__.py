"""Longer checks of single blocks, compiled by CXXRTL: millions of cases, judged by software."""
