"""Measuring what embedding tables cost, on hardware or simulated."""
