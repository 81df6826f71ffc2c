"""Judging drafts before they run: on what the target would write anyway, in large passes.

trajectories = trajectory     what the target writes
scores       = score          what each drafter would have done at every point of it, by laws
passes       = replay         how many passes that is, and of which width, for every draft length
costs        = costs          what a pass and a draft take here
document     = document       predictions, ranking: one dictionary, which is analysis.json
measured     = measure        the same drafters, run
sheets, charts, page          draw the document, and nothing else
"""
