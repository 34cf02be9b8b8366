"""Jobs take turns at scarce switch memory, agreed by two-phase commit (MINA sections III-D and IV-B)."""
