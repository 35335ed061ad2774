"""How to understand masked autoencoders: five questions and their answers, measured."""
