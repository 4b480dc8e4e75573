"""A toy chapter: how long does it take to sort numbers?"""
