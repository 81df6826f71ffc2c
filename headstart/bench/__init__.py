"""Measuring: plain decoding and drafts interleaved on the same questions, with the speed and the proof in one report.

questions = workload     what is asked
run       = run          every arm on every question, in turns
document  = summary      ratios, intervals, predictions, verdict: one dictionary, which is bench.json
table, page, picture     draw the document, and nothing else
"""
