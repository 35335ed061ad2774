"""TopoLip [chen2024] section 5: ten networks, how the shape of the data changes along depth, and robustness."""
