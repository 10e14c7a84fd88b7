import a4
from a4 import *
def k():
    init(0,2,timeout=5)
    for i in range(3):
        try: rpc.remote("w1",V).rpc_async().missing().wait()
        except BaseException as e: say(type(e).__name__)
    gc.collect(); tbooks("failed attribute, no signal")
    say("ok path"); [rpc.remote("w1",V).rpc_async().get().wait() for i in range(3)]; gc.collect(); say(len(books()[0]))
    os._exit(0)
K=dict(k=[k,lambda: (init(1,2),time.sleep(6),os._exit(0))])
if __name__=="__main__": main(K)
