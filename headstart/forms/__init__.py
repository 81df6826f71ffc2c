"""What reports look like: sheets (tables of words), charts (plots as numbers), and their forms: terminal, page, picture.

Draws what it is given; knows nothing of models or measurements.
"""
