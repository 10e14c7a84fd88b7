"""python a6.py leak [torchwire|tensorpipe]: w0 interrupts rpc_sync calls whose result is an RRef, then shuts down"""
import a4
from a4 import *
import faulthandler
def w0():
    faulthandler.dump_traceback_later(float(os.environ.get("E3T","3"))+18); a4.e3(5)
def w1():
    faulthandler.dump_traceback_later(float(os.environ.get("E3T","3"))+18)
    init(1,2); 
    tried("w1 shutdown",rpc.shutdown)
def dd1():
    init(0,2,timeout=10); p=[0]
    for i in range(400):
        d=tempfile
G=dict(leak=[w0,w1])
if __name__=="__main__": main(G)
