"""The five systems on one page: what `penstock dev` shows where no app is given."""
