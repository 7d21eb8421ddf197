"""The load of the campaign: callers who submit, cancel, retry, watch, pay and call back."""
