"""Does anything that lisse watches tell of a training that will diverge, before its loss does?"""
