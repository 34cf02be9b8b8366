"""What daemons show of themselves: status, tables, metrics, logs."""
