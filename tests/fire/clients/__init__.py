"""The load of the campaign: clients that submit, cancel, retry, watch, pay and call back."""
