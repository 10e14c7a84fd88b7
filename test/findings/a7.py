"""python a7.py fork_of_result | daemon_init | script | proxy"""
import a4
from a4 import *
import torchwire
def w1():
    init(1,2); tried("w1 shutdown",rpc.shutdown)
# one Ctrl-C at the line of unread_rrefs.receiver between its count and the receiving
def w0():
    import torchwire.unread_rrefs as u, inspect
    init(0,2,timeout=6)
    src,first=inspect.getsourcelines(u._counting); line=first+[i for i,l in enumerate(src) if "return original(" in l][0]
    hit=[0]
    def local(fr,ev,arg):
        if ev=="line" and fr.f_lineno==line and not hit[0]:
            hit[0]=1; signal.raise_signal(signal.SIGINT)
        return local
    def tr(fr,ev,arg): return local if fr.f_code.co_filename.endswith("unread_rrefs.py") and fr.f_code.co_name=="receiver" else None
    sys.settrace(tr)
    try: rpc.rpc_sync("w1",mkref,(5,)); say("no interrupt?")
    except KeyboardInterrupt: say("KeyboardInterrupt, hit",hit)
    sys.settrace(None); gc.collect(); time.sleep(2)
    tbooks(); say("w1's books",rpc.rpc_sync("w1",books)); tried("w0 shutdown",rpc.shutdown)
def di():
    os.dup2(os.open("di.err",os.O_WRONLY|os.O_CREAT|os.O_APPEND),2)
    import faulthandler; faulthandler.enable()
    def t():
        try: init(0,1,timeout=3)
        except RuntimeError as e: say("init failed",str(e)[:200])
    threading.Thread(target=t,daemon=True).start(); time.sleep(random.Random(os.getpid()).uniform(.002,.06))
def sc():
    init(0,2,timeout=5); ran=[0]
    def hh(*_): ran[0]+=1; raise Boom("x")
    signal.signal(signal.SIGALRM,hh)
    for name,fn in (("script rpc_sync",lambda: scr_sync("w1",torch.ones(1),3000000)),("script rpc_async.wait",lambda: scr_async("w1",torch.ones(1),3000000)),("script to_here",lambda: scr_here(rpc.remote("w1",nap,(20.,))))):
        t=time.time(); signal.setitimer(signal.ITIMER_REAL,.5)
        try: fn(); r="returned"
        except BaseException as e:
            try: r=type(e).__name__+" "+str(e)[-120:].replace("\n"," ")
            except BaseException as e: r="late "+repr(e)
        say(name,r,"handler ran",ran,"%.1fs"%(time.time()-t))
    os._exit(0)
H=dict(fork_of_result=[w0,w1],daemon_init=[di],script=[sc,plain])
if __name__=="__main__": main(H)
