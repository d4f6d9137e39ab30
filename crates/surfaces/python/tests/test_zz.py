import sys; sys.path.insert(0,"tests")
import collections, test_hostile as t, conftest
C=collections.Counter()
orig=t.call
def call(data,target,name,objects):
    try:
        r=orig(data,target,name,objects); C[type(target).__name__,"ok"]+=1; return r
    except Exception as e:
        C[type(target).__name__,type(e).__name__]+=1; raise
t.call=call
def test_x():
    t.test_calls_of_all_kinds_in_any_order()
    c=collections.Counter()
    for (a,b),n in C.items(): c[b]+=n
    print(c)
