"""Signing secrets of test installations: random, since weak ones are refused."""

SECRET = "bbeeb5eaa43a15edbc5a620600a807eb7d856edef7b1dbdc1a364ff5477a8baa"  # noqa: S105
NEXT_SECRET = "d43251d0d8befda5247812582621832479ad96f089fbf44badcf896188911261"  # noqa: S105
