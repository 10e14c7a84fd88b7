import a4
from a4 import *
from a3 import scr_here
@torch.jit.script
def scr_h2(r: RRef[float], t: float) -> float: return r.to_here(t)
def th():
    init(0,2,timeout=4); ran=[0]; lab=os.environ["ADVB"]
    def hh(*_): ran[0]+=1; raise Boom("x")
    signal.signal(signal.SIGALRM,hh); 
    for name,fn in (("script to_here()",lambda: scr_here(rpc.remote("w1",nap,(9.,)))),):
        t=time.time()
        if os.environ.get("SIG"): signal.setitimer(signal.ITIMER_REAL,.5)
        try: fn(); r="returned"
        except BaseException as e:
            try: r=type(e).__name__+" "+str(e)[-160:].replace("\n"," ")
            except BaseException as e: r="late "+repr(e)
        say(lab,name,r,"handler ran",ran,"%.1fs"%(time.time()-t))
    os._exit(0)
H=dict(th=[th,lambda: (init(1,2),time.sleep(60))])
if __name__=="__main__": main(H)
