from h import *
import a1,a2,a3,a4
from a1 import *
from a2 import *
from a3 import *
from a4 import *
def plain(t=6):
    init(1,2); rpc.shutdown()
def dd():
    init(0,2,timeout=4); ran=[0]
    def hh(*_): ran[0]+=1; raise Boom("x")
    signal.signal(signal.SIGALRM,hh)
    def alarm(): signal.setitimer(signal.ITIMER_REAL,.3)
    def d(n):
        with da.context() as cc: r=rpc.remote("w1",slow_lossn,(n,)); alarm(); return r.backward(cc)
    for n in (2,6,6,6):
        ran[0]=0; caught=[]
        try: tried("rref.backward",d,n,limit=1)
        except BaseException as e: caught.append(repr(e))
        try: time.sleep(.2)
        except BaseException as e: caught.append("later "+repr(e))
        say(n,"handler ran",ran,"caught outside",caught); time.sleep(3)
    tried("sd",rpc.shutdown)
# F2: fork in handler + init_rpc in child, step by step
def child_init_in_handler(how):
    d=tempfile.mkdtemp()
    pid=os.fork()
    if pid==0:
        step="init"
        try:
            init(0,1,store=d+"/s"); step="call"; v=rpc.rpc_sync("w0",f,(3,)); step="shutdown"; rpc.shutdown(); os._exit(v)
        except BaseException as e: say(how,"child failed at",step,type(e).__name__,str(e)[:200]); os._exit(99)
    return child_wait(pid)
def ci():
    init(0,2,timeout=15)
    for i in range(3):
        tried("sync",rpc.rpc_sync,"w1",child_init_in_handler,("sync",))
        tried("remote",lambda: rpc.remote("w1",child_init_in_handler,("remote",)).to_here())
        with da.context(): tried("ctx",rpc.rpc_sync,"w1",child_init_in_handler,("ctx",))
        with da.context(): tried("main ctx",child_init_in_handler,"main ctx")
        tried("main",child_init_in_handler,"main")
        tried("in then",rpc.rpc_async("w1",nap,(.1,)).then(lambda x: child_init_in_handler("then")).wait)
        with torch.autograd.profiler.profile(): tried("profiled",rpc.rpc_sync,"w1",child_init_in_handler,("profiled",))
    tried("sd",rpc.shutdown)
# F1: main ends while daemon thread in init_rpc
def f1():
    def t():
        try: init(0,2,timeout=3)
        except RuntimeError as e: say("init failed",str(e)[:200])
    threading.Thread(target=t,daemon=True).start(); 
    n=random.choice([.01,.015,.02,.025,.03,.035,.04]); time.sleep(n); say("main ends after",n)
def f1b():
    try: init(1,2,timeout=3)
    except RuntimeError as e: say("peer init failed",str(e)[:300])
    else: tried("call",rpc.rpc_sync,"w0",f); tried("shutdown",rpc.shutdown)
F=dict(dd=[dd,plain],ci=[ci,plain],f1=[f1,f1b])
if __name__=="__main__": main(F)
