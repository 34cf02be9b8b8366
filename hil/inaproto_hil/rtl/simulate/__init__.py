"""Single blocks of the RTL compiled by CXXRTL, for millions of vectors; the whole is in ``verilated``."""
