"""Code that runs under the user's interpreter with only Python 3.9+, torch 2.8-2.15 and the standard library.

`main.py` is started by path and gives this directory a private package name, so that files here import each
other relatively and can never shadow a module of the user.
"""
