"""What tests share and what is no test: worlds, stand-ins, samples, tools.

Imports deliveryd and its sandbox, and nothing else of the tests. A helper of one test module stays in that
module; what belongs to one harness (simulation, crashes, power, hostile) stays in its package.
"""
