"""What is shown to people is a value, a `Document`, and here are its renderings.

Whoever has something to say builds a document of sections, rows, tables and words. `terminal`, `html` and `markdown`
write it down, and its `values` are the JSON for programs. A part may be marked `full`: a short rendering leaves it out.
Nothing in a document is escaped. Each rendering does that, in one place.
"""
