"""The pages by noun: each module reads what its pages show and renders their templates."""
