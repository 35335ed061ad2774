"""Small changes of the input, chosen to make a classifier fail; and how to tell whether an attack did its work."""

from lisse.networks.answers import logits_of, right
from lisse.networks.attack.adversary import Adversarially, Adversary
from lisse.networks.attack.automatic import auto_attack
from lisse.networks.attack.blind import random_search, random_shift
from lisse.networks.attack.distance import attack_distance
from lisse.networks.attack.gradient import Method, attack, clean_gradient_attack
from lisse.networks.attack.losses import AttackLoss
from lisse.networks.attack.norms import Norm
from lisse.networks.attack.sanity import Check, Sign, sanity_check, signs
from lisse.networks.attack.standing import standing

__all__ = [
    "Adversarially",
    "Adversary",
    "AttackLoss",
    "Check",
    "Method",
    "Norm",
    "Sign",
    "attack",
    "attack_distance",
    "auto_attack",
    "clean_gradient_attack",
    "logits_of",
    "random_search",
    "random_shift",
    "right",
    "sanity_check",
    "signs",
    "standing",
]
