"""survey(): models on data, by every instrument that fits, with all that a page about them needs."""

from lisse.surveying.networks import profile_name, survey

__all__ = ["profile_name", "survey"]
