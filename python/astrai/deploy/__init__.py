"""Serving with several engines at once, over systems that start and watch them."""
